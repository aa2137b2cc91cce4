"""Found by Spark itself: it imports every module named pyspark_… and takes DefaultSource."""

import pyspark

from sparkwal.options.spark_versions import is_supported

__all__ = ["DefaultSource"]

# An error here would cost a session of an older Spark all the data sources that it looks up.
if is_supported(pyspark.__version__):
    from sparkwal.spark.datasource import WeaselWalDataSource as DefaultSource
