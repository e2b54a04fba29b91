"""Ray actors on the nodes: each actor starts and supervises one worker."""
