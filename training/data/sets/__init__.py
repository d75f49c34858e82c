"""Data sets of our own: scans that scikit-learn carries, and folders of photographs."""
