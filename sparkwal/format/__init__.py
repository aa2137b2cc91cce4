"""What the bytes of a log are: keys, headers, Arrow files. Opens nothing and decides nothing."""
