"""FedFSA: class names as anchors, a head that the server trains."""

from fedfeat.methods.fedfsa import fedfsa as fedfsa
