"""``python -m tools.warmstart --out FOLDER``: build the embedded policy."""

from tools.warmstart.build import main

if __name__ == "__main__":
    main()
