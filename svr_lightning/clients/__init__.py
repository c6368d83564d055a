"""HTTP clients of model servers, for the controller, `serve` and the engines that ask servers."""
