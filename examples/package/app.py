"""An application of two models from one package: it finds a place in an image, and says what it is.

python examples/package/app.py app.byoc [PREFERRED...]

PREFERRED are names of devices, the best first. For each model one variant is loaded that runs on this
machine, and the application prints which, and why not the others.
"""

import sys
from pathlib import Path

import numpy as np

import byoc


def make_image(number: int) -> np.ndarray:
    """Return an image that the application in C makes, too: 1 x 3 x 32 x 32 numbers from 0 to 1."""
    whole = (np.arange(3 * 32 * 32) + 97 * number) % 251
    return (whole / np.float32(251)).astype(np.float32).reshape(1, 3, 32, 32)


def main() -> None:
    """Load the models, run them on two images, and print what they found."""
    package, prefer = Path(sys.argv[1]), sys.argv[2:]
    sessions = {name: byoc.load(package / name, prefer=prefer) for name in ("detector", "classifier")}
    for name, session in sessions.items():
        for line in session.choice.describe():
            print(f"{name}: {line}")
    for image in map(make_image, range(2)):
        heat = sessions["detector"]({"image": image})["scores"].ravel()
        scores = sessions["classifier"]({"image": image})["scores"].ravel()
        print(f"place {heat.argmax()}, score {heat.max():.4f}")
        print(f"class {scores.argmax()}, score {scores.max():.4f}")


if __name__ == "__main__":
    main()
