"""Reports: runs in tables and pictures, also beside the numbers that papers print."""
