"""What a method works on: the learning problem, the method's interface, the pipeline of defences."""
