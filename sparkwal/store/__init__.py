"""Object stores behind one interface. This room does not depend on the log's protocol."""
