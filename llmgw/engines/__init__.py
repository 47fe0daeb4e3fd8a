"""What each engine looks like: which build fits a node, its command line, its memory, its proof of life. All pure."""
