"""HTTP clients of model servers, for the controller, `serve` and the engine that asks servers."""
