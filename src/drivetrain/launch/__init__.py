"""A job becomes processes: started, watched, stopped together, and the first failing rank named."""
