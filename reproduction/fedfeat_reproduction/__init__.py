"""The paper's tables and figures: published values, the experiments behind them, and what we really got."""

from fedfeat_reproduction.records import Record, read_record, read_records, record, write_record

__all__ = ["Record", "read_record", "read_records", "record", "write_record"]
