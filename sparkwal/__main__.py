"""`python -m sparkwal` is the command `sparkwal`."""

from sparkwal.cli.entry import run

if __name__ == "__main__":
    run()
