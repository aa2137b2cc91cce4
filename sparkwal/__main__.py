"""`python -m sparkwal` is the command `sparkwal`."""

from sparkwal.cli import run

if __name__ == "__main__":
    run()
