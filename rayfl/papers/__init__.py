"""The numbers that papers print, a file for each paper."""
