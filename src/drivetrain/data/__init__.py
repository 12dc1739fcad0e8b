"""Which samples a rank sees, in which order, with which augmentation, and how they reach the device."""
