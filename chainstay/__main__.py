"""``python -m chainstay``."""

from chainstay.cli import app

if __name__ == "__main__":
    app()
