"""What a user may say: every option, its type, default and meaning. Opens nothing."""
