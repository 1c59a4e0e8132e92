"""TARGET and LANDER: images made by the server from a frozen model alone."""

from fedfeat.methods.data_free import lander as lander
from fedfeat.methods.data_free import target as target
