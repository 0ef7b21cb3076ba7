"""Figures of brokers beside a bare program under the same load."""
