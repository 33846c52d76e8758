"""Write a Keras file's weights as TensorFlow saves them: ``SCRIPT.py FROM.weights.h5 PREFIX``."""

import sys

import tensorflow as tf
from everything_keras import model


def main() -> None:
    source, prefix = sys.argv[1:]
    network = model()
    network.build((None, 8, 8, 1))
    network.load_weights(source)
    tf.train.Checkpoint(model=network).save(prefix)


if __name__ == "__main__":
    main()
