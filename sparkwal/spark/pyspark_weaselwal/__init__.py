"""Found by Spark itself: it imports every module named pyspark_… and takes DefaultSource."""

from sparkwal.spark.datasource import WeaselWalDataSource as DefaultSource

__all__ = ["DefaultSource"]
