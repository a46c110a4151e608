"""The face of diagnosis: the journal, live and recorded diagnoses as text, JSON and plots."""
