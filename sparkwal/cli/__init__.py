"""`sparkwal` on the command line: looks at logs, and never fences who writes them."""
