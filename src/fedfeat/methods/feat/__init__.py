"""FEAT: the ETF classifier, the GSA loss, the EGC correction."""

from fedfeat.methods.feat import feat as feat
