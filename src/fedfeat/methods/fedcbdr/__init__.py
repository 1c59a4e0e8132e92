"""FedCBDR: leverage scores, masks, and the temperature-scaled loss."""

from fedfeat.methods.fedcbdr import fedcbdr as fedcbdr
