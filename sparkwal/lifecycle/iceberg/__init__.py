"""An Iceberg table without a JVM: its catalog, its history and its rows."""
