"""The chapters' tables, measured: what a cache saves and holds, what a batch gains, what smaller weights buy."""
