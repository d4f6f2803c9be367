"""The disk tier: snapshots in files that outlive the process and are shared by processes."""
