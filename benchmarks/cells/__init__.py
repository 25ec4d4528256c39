"""`python -m benchmarks cells`: gamma rules over every cell of cost table × pair × batch size × temperature."""
