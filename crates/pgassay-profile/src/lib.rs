//! Watches a server's processes: CPU stacks, exact CPU totals, symbols.
