"""Laws of loss over parameters and tokens, fitted to small runs; never imports torch."""
