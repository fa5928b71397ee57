"""What runs, sweeps and ``fuse`` share to show what they found: pages and plots."""
