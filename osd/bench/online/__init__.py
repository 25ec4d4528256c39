"""`osd bench online`: online against offline distillation."""
