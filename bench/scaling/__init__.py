"""The cost of a batch: measurements that vary one factor at a time, and a model fitted to them."""
