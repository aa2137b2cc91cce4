"""What the command and the jobs share on a terminal: options, output, exit codes."""
