"""One model from many updates, also where some of them are hostile."""
