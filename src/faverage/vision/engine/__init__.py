"""How networks are trained, whatever their objective: the loop, the step, devices and processes."""
