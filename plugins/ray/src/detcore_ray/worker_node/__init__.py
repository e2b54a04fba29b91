"""The actors of Ray on the nodes: each starts one worker and supervises it."""
