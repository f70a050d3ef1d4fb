"""Reports: runs as tables and pictures, and compared with the numbers that papers print."""
