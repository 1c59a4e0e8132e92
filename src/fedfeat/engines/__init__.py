"""How clients are run; nothing is imported here, so that a gateway or a set of keys needs no PyTorch."""
