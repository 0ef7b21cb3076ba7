"""HTTP/2 connections."""
