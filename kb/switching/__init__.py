"""From one checkpoint's keys to another's: keys in bulk, the gate, the switch and the way back."""
