"""Makes `python -m colmlm.cli` the same as `colmlm`, for machines where the console script is not on the path."""

from colmlm.cli.main import main

if __name__ == "__main__":
    main()
