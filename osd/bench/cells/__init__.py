"""`python -m osd.bench cells`: gamma rules over every cell of cost table × pair × batch size × temperature."""
