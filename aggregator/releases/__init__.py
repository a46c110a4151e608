"""Released windows on disk: DuckDB and Parquet, packs, and their readers."""
