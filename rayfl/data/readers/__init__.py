"""Reading the files of data sets."""
