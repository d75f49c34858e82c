"""What is done with a trained model: evaluating, explaining, predicting, exporting."""
