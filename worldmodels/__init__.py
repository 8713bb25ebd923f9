"""World Models (Ha & Schmidhuber, 2018): see with a VAE, predict with an MDN-RNN, act evolved."""

__version__ = "0.1.0"
