"""What every request passes on its way in and out: hosts, keys, rights, rates, lanes, and the drain."""
