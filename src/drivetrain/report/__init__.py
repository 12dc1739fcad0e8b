"""What a person sees of a run: live progress and the closing summary. Reads run directories only."""
