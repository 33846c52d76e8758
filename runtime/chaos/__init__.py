"""Chaos owns strikes from outside: plan, victims, the followed run, its twin, the verdict."""
